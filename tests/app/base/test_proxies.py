"""Which proxy of the environment an address is asked through."""

from importlib.util import find_spec

import pytest

from app.base.proxies import ProxyUnusable, find_proxy

PROXY = {"HTTP_PROXY": "http://proxy:3128", "https_proxy": "secure.proxy:3129"}


def proxy_of(url: str, **environment: str) -> str | None:
    found = find_proxy(url, environment)
    return found and found.url


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "http://plane:8080", None),
        (PROXY, "http://plane:8080", "http://proxy:3128"),
        (PROXY, "https://plane", "http://secure.proxy:3129"),
        ({"ALL_PROXY": "http://all:1"}, "https://plane", "http://all:1"),
        ({"all_proxy": "http://all:1", **PROXY}, "http://plane", "http://proxy:3128"),
        ({"HTTP_PROXY": "", "ALL_PROXY": "http://all:1"}, "http://p", "http://all:1"),
        ({"http_proxy": " ", "HTTP_PROXY": "a:1"}, "http://plane", "http://a:1"),
    ],
)
def test_the_first_variable_that_says_something_names_the_proxy(
    environment: dict[str, str], url: str, expected: str | None
) -> None:
    assert proxy_of(url, **environment) == expected


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.9.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "api.localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
    ],
)
@pytest.mark.parametrize("proxy", ["http://proxy:3128", "socks5://proxy:1080", "x://"])
def test_this_machine_is_asked_directly(host: str, proxy: str) -> None:
    assert proxy_of(f"http://{host}:8080", ALL_PROXY=proxy) is None


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_direct"),
    [
        ("*", "http://plane", True),
        ("plane", "http://plane:8080", True),
        ("plane", "http://airplane", False),
        ("example.com", "http://gpu.example.com", True),
        (".example.com", "http://gpu.example.com", True),
        ("*.example.com", "http://gpu.example.com", True),
        ("Example.COM", "http://GPU.example.com.", True),
        ("example.com", "http://badexample.com", False),
        ("a.com, b.com c.com", "http://c.com", True),
        ("10.0.0.0/8", "http://10.20.30.40:8080", True),
        ("10.0.0.0/8", "http://11.0.0.1", False),
        ("10.0.0.7/8", "http://10.1.1.1", True),
        ("10.1.2.3", "http://10.1.2.3", True),
        ("10.1.2.3", "http://10.1.2.30", False),
        ("10.0.0.0/8", "http://plane10", False),
        ("fd00::/8", "http://[fd12::1]:8080", True),
        ("fd00::/8", "http://[fe80::1]", False),
        ("[fd00::1]", "http://[fd00::1]", True),
        ("10.0.0.0/8", "http://[::ffff:10.1.1.1]", True),
        ("plane:8080", "http://plane:8080", True),
        ("plane:8080", "http://plane:9090", False),
        ("plane:80", "http://plane", True),
        ("[fd00::1]:8080", "http://[fd00::1]:8080", True),
        ("10.0.0.0/99, ,plane", "http://plane", True),
        ("", "http://plane", False),
    ],
)
def test_no_proxy_lists_who_is_asked_directly(
    no_proxy: str, url: str, *, is_direct: bool
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        found = find_proxy(url, {"http_proxy": "http://proxy:1", name: no_proxy})
        assert (found is None) is is_direct


@pytest.mark.parametrize(
    "proxy",
    [
        "socks4://proxy:1",
        "ftp://proxy",
        "http://",
        "http://proxy:x",
        "http://[p",
        "://",
    ],
)
def test_what_is_no_proxy_names_its_variable_and_the_remedy(proxy: str) -> None:
    with pytest.raises(ProxyUnusable, match=r"ALL_PROXY.*add plane to NO_PROXY"):
        find_proxy("http://plane", {"ALL_PROXY": proxy})


@pytest.mark.skipif(find_spec("socksio") is not None, reason="socksio is here")
@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "SOCKS5"])
def test_a_socks_proxy_without_its_package_names_the_remedy(scheme: str) -> None:
    with pytest.raises(ProxyUnusable, match=r"pip install socksio.*NO_PROXY") as error:
        find_proxy("http://plane", {"ALL_PROXY": f"{scheme}://me:secret@proxy:1080"})
    assert "secret" not in str(error.value) and "me:***@proxy" in str(error.value)


def test_a_password_is_not_shown() -> None:
    found = find_proxy("http://plane", {"HTTP_PROXY": "http://me:secret@proxy:3128"})
    assert found is not None
    assert found.url == "http://me:secret@proxy:3128"
    assert found.place == "http://me:***@proxy:3128 (HTTP_PROXY)"


def test_what_is_no_address_is_left_to_whoever_asks_it() -> None:
    assert proxy_of("http://[plane", **PROXY) is None
