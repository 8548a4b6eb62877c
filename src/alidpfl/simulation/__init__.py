"""Federations with all clients on one machine, in one process or in several."""

from alidpfl.simulation.engine import Simulation, Wrap, default_processes
from alidpfl.simulation.runner import SimulationData

__all__ = ["Simulation", "SimulationData", "Wrap", "default_processes"]
