"""What is looked after while nobody ingests: runs, tasks and engine work that a killed process left standing."""
