"""Indexes for what the leader asks of samples every minute, whatever was served; a comment that tells the truth."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# Served samples may be a thousand times as many as those that people sent: the search for new ones passes them over.
INDEXES = """
CREATE INDEX sample_sent ON sample (network, gpu_type, received_at DESC) WHERE source <> 'served';
CREATE INDEX sample_served ON sample (network, gpu_type, received_at DESC) WHERE source = 'served';
"""
BAND = "COMMENT ON COLUMN report.fit_health.band_percent IS 'Errors above it, {} periods in a row, raise the alarm.'"


def upgrade() -> None:
    """Make them."""
    op.execute(INDEXES)
    op.execute(BAND.format("two"))


def downgrade() -> None:
    """Remove them."""
    op.execute(BAND.format("three"))
    op.execute("DROP INDEX sample_served, sample_sent")
