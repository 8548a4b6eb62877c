"""A whole deployment on this machine, for trying out and for tests."""
