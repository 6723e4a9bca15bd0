"""tokenloom against its peers, in one run on one machine: `python -m benchmarks`. See README.md beside this file."""
