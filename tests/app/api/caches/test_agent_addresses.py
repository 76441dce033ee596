"""Scrapers are sent to an agent's own address only, whatever it says."""

import pytest

from app.api.caches.agent_addresses import own_address


@pytest.mark.parametrize(
    ("said", "peer", "kept"),
    [
        ("10.0.0.7:9410", "10.0.0.7", "10.0.0.7:9410"),
        ("10.0.0.7:9410", "::ffff:10.0.0.7", "10.0.0.7:9410"),
        ("[fd00::7]:9410", "fd00::7", "[fd00::7]:9410"),
        ("127.0.0.1:9410", "127.0.0.1", "127.0.0.1:9410"),
        # A name may resolve to anything, and so may a number that looks like one: the address stands for it.
        ("gpu-7.example.com:9410", "10.0.0.7", "10.0.0.7:9410"),
        ("metadata.google.internal:80", "10.0.0.7", "10.0.0.7:80"),
        ("2852039166:80", "10.0.0.7", "10.0.0.7:80"),
        ("0xa9fea9fe:80", "10.0.0.7", "10.0.0.7:80"),
        ("169.254.169.254:80", "10.0.0.7", ""),
        ("[fd00:ec2::254]:80", "10.0.0.7", ""),
        ("10.0.0.8:9410", "10.0.0.7", ""),
        ("127.0.0.1:5432", "10.0.0.7", ""),
        ("169.254.169.254:80", "169.254.169.254", ""),
        ("[fe80::1]:9410", "fe80::1", ""),
        ("10.0.0.7:0", "10.0.0.7", ""),
        ("10.0.0.7:99999", "10.0.0.7", ""),
        ("10.0.0.7:9410", "", ""),
        ("10.0.0.7:9410/x", "10.0.0.7", ""),
    ],
)
def test_metrics_are_read_at_the_agents_own_address_and_nowhere_else(
    said: str, peer: str, kept: str
) -> None:
    assert own_address(said, peer) == kept
