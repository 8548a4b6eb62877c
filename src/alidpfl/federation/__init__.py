"""Clients, server and the one training loop that every method and every engine runs."""
