"""Settings: one class, one prefix (`PLIMSOLL_`), read once at start. Run-time tuning is a Policy row."""

from pathlib import Path
from typing import Literal

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from agents.base.protocol import LeaseEnd, LeaseTerms
from app.base.sign_on import SignOnTerms, check_issuer, check_root_url, parse_grant


class Settings(BaseSettings):
    """Where the control plane runs. Precedence: command-line flags, then environment, then these defaults."""

    model_config = SettingsConfigDict(
        env_prefix="PLIMSOLL_",
        extra="ignore",
        frozen=True,
        # What was given has the secrets in it, and an error's text goes to terminals and logs.
        hide_input_in_errors=True,
    )

    database_url: SecretStr | None = Field(
        default=None,
        description="Any PostgreSQL 15 or newer, e.g. postgresql://user@host/plimsoll; "
        "unset: the embedded server under `data_dir`",
    )
    data_dir: Path = Field(
        default=Path(".plimsoll"),
        description="Folder of the embedded database and of simulated nodes' ledgers",
    )
    host: str = Field(
        default="127.0.0.1", description="Address that the API listens on"
    )
    port: int = Field(
        default=8080,
        ge=0,
        le=65535,
        description="Port that the API listens on; 0 = any free one",
    )
    tls_cert: FilePath | None = Field(
        default=None,
        description="Certificate (PEM, with its chain) with which the API serves HTTPS; needs `tls_key`",
    )
    tls_key: FilePath | None = Field(
        default=None, description="Private key (PEM) of that certificate"
    )
    tls_client_ca: FilePath | None = Field(
        default=None,
        description="Authority (PEM) that must have signed every client's certificate, including people's; for "
        "agents, run a separate API process with it",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Log lines for people or for machines"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum severity to log"
    )
    speed: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Seconds of control-plane time per second on the wall; for demos",
    )
    pool_size: int = Field(
        default=10, ge=2, le=100, description="Database connections per process"
    )
    request_limit_bytes: int = Field(
        default=4_194_304,
        ge=1024,
        description="Largest request body accepted; only profiles, samples, scenarios and what-ifs may be that "
        "large: other manifests have 512 KiB at most, all other requests 64 KiB",
    )
    token_rate: float = Field(
        default=50.0,
        ge=1.0,
        le=100_000.0,
        # A list takes the server's only thread some 5 ms: one token may take a quarter of it, and agents find it free.
        description="Sustained requests per second of one token, and four times as many at once; requests that "
        "plan, simulate or build long tables count as ten",
    )
    sync_queue_limit: int = Field(
        default=5000,
        ge=1,
        description="Observations that may wait for their commit before agents are told to wait",
    )
    lease_s: int = Field(
        default=0,
        ge=0,
        le=31_536_000,
        description="Seconds that a node's command stays valid after the control plane's last answer; 0 = forever",
    )
    lease_end: LeaseEnd = Field(
        default="keep",
        description="What a node does when its lease has ended: `keep` its command, or `restore` the defaults of "
        "clocks and power limits and stop governors; replicas serve on either way",
    )
    solver_threads: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Threads that a policy may use; API and controller have one worker each",
    )
    retention_days: int = Field(
        default=30,
        ge=8,
        # More than `app.store.windows.OLDEST_WINDOW_S`, or observations came in for days that were dropped.
        description="Days that observations are kept; hourly figures are kept forever",
    )

    rates_days: int = Field(
        default=28,
        ge=2,
        le=366,
        description="Days that arrival rates are kept in steps of five minutes, to forecast by time of day; "
        "the newest 28 are used",
    )

    controller_metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port on which a controller without an API (`plimsoll controller`) answers GET /metrics "
        "without a token; 0 = none",
    )
    controller_metrics_host: str = Field(
        default="127.0.0.1", description="Address of that port"
    )

    webhook_private: bool = Field(
        default=False,
        description="Whether webhooks may reach loopback, private and link-local addresses",
    )

    public_url: str | None = Field(
        default=None,
        description="Address at which people reach the dashboard, e.g. https://plimsoll.example.org; single sign-on "
        "needs it",
    )
    kubernetes_namespace: str | None = Field(
        default=None,
        description="Namespace of the agents in the Kubernetes cluster in which this runs: nodes are then "
        "enrolled by their agents' service accounts, and objects like PlimsollService are written here. "
        "Unset: there is no cluster",
    )
    gateway_url: str | None = Field(
        default=None,
        description="Address at which callers reach `plimsoll gateway`, e.g. https://inference.example.org; shown as "
        "every service's endpoint. Unset: the nodes' own addresses are shown",
    )
    oidc_issuer: str | None = Field(
        default=None,
        description="Identity provider (OpenID Connect) with which people log in to the dashboard; with the next three "
        "settings and `public_url`",
    )
    oidc_client_id: str | None = Field(
        default=None, description="The control plane's client id at that provider"
    )
    oidc_client_secret: SecretStr | None = Field(
        default=None, description="The secret of that client"
    )
    oidc_groups: dict[str, str] = Field(
        default={},
        description="Scopes of the provider's groups, as JSON: "
        '`{"ml-team": "operator@search", "sre": "admin"}`; no one else has access',
    )
    oidc_groups_claim: str = Field(
        default="groups", description="The claim that lists a person's groups"
    )

    @field_validator("gateway_url")
    @classmethod
    def _check_gateway(cls, url: str | None) -> str | None:
        return None if url is None else check_root_url(url, "gateway_url")

    @model_validator(mode="after")
    def _check_sign_on(self) -> "Settings":
        # Made once to be checked: a wrong group would else show itself at somebody's login only.
        self.sign_on  # noqa: B018
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> "Settings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together; give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        return self

    @property
    def lease(self) -> LeaseTerms | None:
        """What agents are told with every answer; None = commands hold for ever."""
        return (
            LeaseTerms(duration_s=float(self.lease_s), on_end=self.lease_end)
            if self.lease_s
            else None
        )

    @property
    def sign_on(self) -> SignOnTerms | None:
        """The identity provider by which people log in; None = by tokens only. Raises ValueError."""
        given = {
            "oidc_issuer": self.oidc_issuer,
            "oidc_client_id": self.oidc_client_id,
            "oidc_client_secret": self.oidc_client_secret,
            "oidc_groups": self.oidc_groups,
        }
        # `public_url` is no sign of it: other parts may come to need that address, too.
        if not any(given.values()):
            return None
        missing = [
            name
            for name, value in {**given, "public_url": self.public_url}.items()
            if not value
        ]
        if missing or self.oidc_client_secret is None:
            raise ValueError(f"single sign-on also needs {', '.join(missing)}")
        return SignOnTerms(
            issuer=check_issuer(self.oidc_issuer or ""),
            client_id=self.oidc_client_id or "",
            client_secret=self.oidc_client_secret,
            groups_claim=self.oidc_groups_claim,
            grants={name: parse_grant(text) for name, text in self.oidc_groups.items()},
            public_url=check_root_url(self.public_url or "", "public_url"),
        )

    def printable(self) -> dict[str, str]:
        """Every setting with its value, secrets masked."""
        return {name: str(getattr(self, name)) for name in type(self).model_fields}
