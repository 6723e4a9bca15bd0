"""What tokenloom is held against, each written here for the comparison, as its users would write it."""
