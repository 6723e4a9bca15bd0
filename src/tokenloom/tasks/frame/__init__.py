"""What every task shares: the contract, settings from anywhere, the run folder, the way from data to a trained run."""
