"""What the tasks that make pictures share: reading, tokenisers, copies, and counts to compare with."""
