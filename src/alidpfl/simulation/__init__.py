"""How a round's plans reach the clients: in processes on one machine, or over nodes with vaults."""
