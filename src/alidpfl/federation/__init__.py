"""The federation: plan a round, charge it, have clients train, aggregate. The same for every method and engine."""

from alidpfl.federation.loop import Federation
from alidpfl.federation.server import ServerSettings
from alidpfl.federation.settings import FederationSettings

__all__ = ["Federation", "FederationSettings", "ServerSettings"]
