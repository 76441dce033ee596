"""Settings: one class, one prefix (`PLIMSOLL_`), read once at start. Run-time tuning is a Policy row."""

from pathlib import Path
from typing import Literal

from pydantic import Field, FilePath, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from agents.base.protocol import LeaseEnd, LeaseTerms


class Settings(BaseSettings):
    """Where the control plane runs. Precedence: command-line flags, then environment, then these defaults."""

    model_config = SettingsConfigDict(
        env_prefix="PLIMSOLL_", extra="ignore", frozen=True
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
        description="Certificate (PEM, with its chain) by which the API serves HTTPS; needs `tls_key`",
    )
    tls_key: FilePath | None = Field(
        default=None, description="Private key (PEM) of that certificate"
    )
    tls_client_ca: FilePath | None = Field(
        default=None,
        description="Authority (PEM) that must have signed the certificate of whoever connects, a person's, too; "
        "give agents an API process of their own with it",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Log lines for people or for machines"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity logged"
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
        default=4_194_304, ge=1024, description="Largest request body that is read"
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
        description="Seconds that a node's command holds after the control plane's last answer; 0 = for ever",
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
        description="Threads that a policy may plan with; API and controller have one worker each",
    )
    retention_days: int = Field(
        default=30,
        ge=8,
        # More than `app.store.windows.OLDEST_WINDOW_S`, or observations came in for days that were dropped.
        description="Days that observations are kept; hourly figures are kept for ever",
    )

    rates_days: int = Field(
        default=28,
        ge=2,
        le=366,
        description="Days that arrival rates are kept in steps of five minutes, to forecast by the time of the day; "
        "the newest 28 are used",
    )

    controller_metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port at which a controller without an API (`plimsoll controller`) answers GET /metrics "
        "without a token; 0 = none",
    )
    controller_metrics_host: str = Field(
        default="127.0.0.1", description="Address of that port"
    )

    webhook_private: bool = Field(
        default=False,
        description="Whether webhooks may reach loopback, private and link-local addresses",
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> "Settings":
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

    def printable(self) -> dict[str, str]:
        """Every setting with its value, secrets masked."""
        return {name: str(getattr(self, name)) for name in type(self).model_fields}
