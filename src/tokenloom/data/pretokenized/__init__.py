"""Text of any size, tokenized into shards before training."""
