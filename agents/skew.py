"""How far the node's clock is from the control plane's, by one exchange.

    skew = ClockSkew()
    skew.note(sent_s=..., received_s=..., server_time_s=...)     # of every answer
    skew.problem

The control plane read its clock somewhere between sending and receipt, so an exchange says no more than a range:

    sent_s - server_time_s  <=  the node's clock minus the control plane's  <=  received_s - server_time_s

Only what is certain counts: a slow network, or an answer that waited, is no wrong clock.
"""

LIMIT_S = 5.0
"""A larger difference is reported. The control plane's windows are some seconds long."""


class ClockSkew:
    """Of one node."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._low_s = self._high_s = 0.0

    def note(self, *, sent_s: float, received_s: float, server_time_s: float) -> None:
        """The times of one exchange: two of the node's clock, one of the control plane's."""
        self._low_s, self._high_s = sent_s - server_time_s, received_s - server_time_s

    @property
    def certain_s(self) -> float:
        """The smallest difference that explains the last exchange; positive: the node's clock is ahead."""
        return max(self._low_s, min(self._high_s, 0.0))

    @property
    def problem(self) -> str:
        """What is wrong, by how much, and what to do; empty = nothing."""
        if abs(self.certain_s) <= self._limit_s:
            return ""
        middle_s, half_s = (self._low_s + self._high_s) / 2.0, (self._high_s - self._low_s) / 2.0
        side = "ahead of" if middle_s > 0.0 else "behind"
        return (
            f"the node's clock is {abs(middle_s):.1f} s {side} the control plane's (give or take {half_s:.1f}): see by "
            "`timedatectl` which of the two machines has no NTP, set its clock, and restart the agent, which follows "
            "no clock that jumps"
        )
