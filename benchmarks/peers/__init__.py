"""What tokenloom is val_ids against, each written here for the comparison, as its users would write it."""
