"""tokenloom: small transformers for any data."""
