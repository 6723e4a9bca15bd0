"""Run folders, and the training session that turns data into a trained run."""
