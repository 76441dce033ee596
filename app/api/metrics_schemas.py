"""Shapes of what is said to Prometheus beside its own text."""

from pydantic import BaseModel, Field


class TargetGroup(BaseModel):
    """One group of Prometheus' HTTP service discovery: an agent."""

    targets: list[str] = Field(description="Addresses, `host:port`", examples=[["10.0.0.7:9410"]])
    labels: dict[str, str] = Field(
        description="Labels of every series that is read there", examples=[{"node": "gpu-01"}]
    )
