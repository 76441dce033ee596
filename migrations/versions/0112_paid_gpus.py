"""A GPU type says how many of its GPUs are paid for whether they are used or not."""

from alembic import op

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """GPUs of before are rented by the hour, as plans took them to be."""
    op.execute(
        """
        ALTER TABLE gpu_type ADD COLUMN paid_count integer NOT NULL DEFAULT 0
            CHECK (paid_count >= 0 AND paid_count <= 1000000000);
        COMMENT ON COLUMN gpu_type.paid_count IS
            'GPUs that are paid for, used or not: 0 = all are rented by the hour, 1000000000 = all are owned.';
        CREATE VIEW report.cost_by_payment_hour AS
        SELECT b.hour, b.gpu_type, b.used_hours, f.gpus AS paid_gpus,
               f.gpus * p.price_usd_per_hour AS standing_cost_usd,
               round(b.bill_usd * greatest(0, 1 - f.gpus / b.used_hours), 12) AS on_demand_cost_usd
        FROM (
            SELECT hour, gpu_type, sum(hours) AS used_hours, sum(cost_usd) AS bill_usd
            FROM report.bill_hour GROUP BY hour, gpu_type HAVING sum(hours) > 0
        ) AS b
        JOIN (
            SELECT t.name, least(t.paid_count, (SELECT count(*) FROM gpu g WHERE g.gpu_type = t.name)) AS gpus
            FROM gpu_type t
        ) AS f ON f.name = b.gpu_type
        JOIN gpu_price p ON p.gpu_type = b.gpu_type AND p.valid @> b.hour;
        COMMENT ON VIEW report.cost_by_payment_hour IS
            'Cost per hour by GPU type and how it is paid, in hours in which any GPU of the type worked. '
            'As many are paid for as today.';
        COMMENT ON COLUMN report.cost_by_payment_hour.hour IS 'Start of the hour, UTC.';
        COMMENT ON COLUMN report.cost_by_payment_hour.gpu_type IS 'GPU type.';
        COMMENT ON COLUMN report.cost_by_payment_hour.used_hours IS
            'Hours in which GPUs carried replicas or tasks, summed over GPUs.';
        COMMENT ON COLUMN report.cost_by_payment_hour.paid_gpus IS
            'GPUs that are owned or reserved, and paid for whether they are used or not.';
        COMMENT ON COLUMN report.cost_by_payment_hour.standing_cost_usd IS
            'What those cost in the hour, at the price that held when it began.';
        COMMENT ON COLUMN report.cost_by_payment_hour.on_demand_cost_usd IS
            'The part of the bill that is of GPUs beyond those, by the mean number in use.';
        """
    )


def downgrade() -> None:
    """All GPUs are rented by the hour."""
    op.execute(
        """
        DROP VIEW report.cost_by_payment_hour;
        ALTER TABLE gpu_type DROP COLUMN paid_count;
        """
    )
