"""IP addresses as a socket shows them."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


# A fleet's agents report from the same addresses every second.
@lru_cache(maxsize=4096)
def plain_ip(text: str) -> IPv4Address | IPv6Address:
    """The address, without a zone. Raises ValueError for a name."""
    found = ip_address(text.partition("%")[0])
    # A socket that takes both kinds shows an IPv4 client as ::ffff:10.0.0.1.
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
