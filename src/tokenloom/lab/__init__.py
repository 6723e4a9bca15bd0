"""The reference experiments: the published figures of the textbook's chapter, reproduced."""
