"""The reference experiments: every published figure of the chapter, run again and held against the print."""
