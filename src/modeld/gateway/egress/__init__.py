"""The only way out: requests that the daemon makes because a caller named an address.

`addresses` decides which addresses may be asked, `client` asks them.
"""

from modeld.gateway.egress.addresses import Policy, Refused
from modeld.gateway.egress.client import Budget, Egress, Failed

__all__ = ["Budget", "Egress", "Failed", "Policy", "Refused"]
