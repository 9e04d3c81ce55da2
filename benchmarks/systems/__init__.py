"""One module a system, each written the way that system's documentation tells its users to."""
