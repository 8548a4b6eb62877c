"""Deployments on Flower: nodes with vaults, and the server that trains over them."""
