"""How a round's plans reach the clients: in this process, or in several on one machine."""
