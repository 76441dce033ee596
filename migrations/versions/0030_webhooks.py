"""Webhooks: who is sent which events, and what still waits to be sent."""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE webhook (
    name resource_name PRIMARY KEY,
    url text NOT NULL CHECK (url ~ '^https?://'),
    kinds text[] NOT NULL,
    secret text NOT NULL CHECK (secret <> ''),
    is_enabled boolean NOT NULL,
    created_at timestamptz NOT NULL,
    last_delivered_at timestamptz,
    last_error text,
    failed_at timestamptz,
    full_at timestamptz
);
COMMENT ON TABLE webhook IS 'Addresses that are sent events.';
COMMENT ON COLUMN webhook.kinds IS 'Kinds of events that it is sent; empty: all.';
COMMENT ON COLUMN webhook.secret IS 'Readable, since every request is signed with it.';
COMMENT ON COLUMN webhook.failed_at IS 'When the audit said that an event was given up; null once a delivery succeeds.';
COMMENT ON COLUMN webhook.full_at IS 'When the audit said that too many wait; null once half of them are gone.';

CREATE TABLE webhook_delivery (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook resource_name NOT NULL REFERENCES webhook ON DELETE CASCADE,
    event_id bigint NOT NULL REFERENCES event,
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_at timestamptz NOT NULL,
    UNIQUE (webhook, event_id)
);
CREATE INDEX webhook_delivery_by_webhook ON webhook_delivery (webhook, id);
CREATE INDEX webhook_delivery_by_time ON webhook_delivery (webhook, next_at);
COMMENT ON TABLE webhook_delivery IS 'Events that wait to be sent; a row goes when its event arrived or was given up.';
"""

# A webhook is not told of its own trouble, or its failures would fill its queue. SKIP LOCKED: nobody who writes an
# event waits for another who does, or fails for a webhook that is being deleted.
# 10000 is app.db.operations.webhooks.WAITING_LIMIT.
TRIGGER = """
CREATE FUNCTION queue_webhooks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_delivery (webhook, event_id, next_at)
    SELECT w.name, NEW.id, NEW.at FROM webhook w
    WHERE w.is_enabled AND (w.kinds = '{}' OR NEW.kind = ANY (w.kinds))
      AND NOT (NEW.kind IN ('WebhookFailed', 'WebhookFull') AND NEW.subject = 'webhook/' || w.name)
    FOR KEY SHARE OF w SKIP LOCKED;
    IF FOUND THEN
        DELETE FROM webhook_delivery WHERE id IN (
            SELECT d.id FROM webhook w
            CROSS JOIN LATERAL (
                SELECT o.id FROM webhook_delivery o WHERE o.webhook = w.name ORDER BY o.id DESC OFFSET 10000 LIMIT 1
            ) AS last
            JOIN webhook_delivery d ON d.webhook = w.name AND d.id <= last.id
            FOR UPDATE OF d SKIP LOCKED
        );
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER event_to_webhooks AFTER INSERT ON event FOR EACH ROW EXECUTE FUNCTION queue_webhooks();
"""


def upgrade() -> None:
    """Make the tables and what fills them."""
    op.execute(TABLES)
    op.execute(TRIGGER)


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP TRIGGER event_to_webhooks ON event")
    op.execute("DROP FUNCTION queue_webhooks")
    op.execute("DROP TABLE webhook_delivery")
    op.execute("DROP TABLE webhook")
