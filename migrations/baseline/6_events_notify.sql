-- Who may do what, the audit, what is sent or run for people, and the triggers that keep rows, wake the control loop,
-- and make plans too old.

CREATE TABLE token (
    id text PRIMARY KEY,
    name resource_name NOT NULL,
    sha256 bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
    scope text NOT NULL CHECK (scope IN ('viewer', 'operator', 'admin', 'agent')),
    projects text[],
    created_at timestamptz NOT NULL,
    expires_at timestamptz CHECK (expires_at > created_at),
    last_used_at timestamptz,
    revoked_at timestamptz
);
COMMENT ON TABLE token IS 'Bearer tokens; only their hash is kept. projects null = every project.';

CREATE TABLE session (
    sha256 bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),
    token text NOT NULL REFERENCES token ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > created_at)
);
CREATE INDEX session_by_expiry ON session (expires_at);
COMMENT ON TABLE session IS 'People who are logged in to the dashboard.';
COMMENT ON COLUMN session.sha256 IS 'SHA-256 of the cookie; the cookie itself is never kept.';
COMMENT ON COLUMN session.token IS
    'The token that the person logged in with; what it may do, the session may.';
COMMENT ON COLUMN session.created_at IS 'When the person logged in.';
COMMENT ON COLUMN session.expires_at IS 'When they must log in again.';

CREATE TABLE idempotency (
    key text NOT NULL CHECK (char_length(key) BETWEEN 1 AND 255),
    actor text NOT NULL,
    endpoint text NOT NULL,
    request_sha256 bytea NOT NULL CHECK (octet_length(request_sha256) = 32),
    status integer,
    body bytea,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (key, actor, endpoint),
    CHECK ((status IS NULL) = (body IS NULL))
);
CREATE INDEX idempotency_by_age ON idempotency (created_at);
COMMENT ON TABLE idempotency IS 'Answers to requests with an Idempotency-Key; status null = still running.';

CREATE TABLE event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    kind text NOT NULL CHECK (kind ~ '^[A-Z][A-Za-z]+$'),
    subject text NOT NULL,
    reason text NOT NULL DEFAULT '',
    plan_id bigint,
    request_id text,
    before jsonb,
    after jsonb
);
CREATE INDEX event_by_subject ON event (subject, id);
CREATE INDEX event_by_time ON event USING brin (at);
COMMENT ON TABLE event IS 'The audit: every write and every automatic decision; rows are never changed or deleted.';

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

CREATE TABLE simulation (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    asked_by text NOT NULL,
    name text NOT NULL,
    example text,
    document jsonb NOT NULL,
    policies text[] NOT NULL CHECK (cardinality(policies) BETWEEN 1 AND 5),
    seeds integer[] NOT NULL CHECK (cardinality(seeds) >= 1),
    duration_s double precision NOT NULL CHECK (duration_s > 0),
    state text NOT NULL CHECK (state IN ('queued', 'running', 'finished', 'failed', 'cancelled')),
    progress double precision NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    runner text,
    lease_until timestamptz,
    error text,
    summary jsonb,
    report_html bytea,
    report_json bytea,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state = 'running') = (runner IS NOT NULL)),
    CHECK ((state IN ('finished', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CHECK ((state = 'failed') = (error IS NOT NULL)),
    CHECK ((state = 'finished') = (summary IS NOT NULL AND report_html IS NOT NULL))
);
CREATE UNIQUE INDEX simulation_one_runs ON simulation (state) WHERE state = 'running';
CREATE INDEX simulation_queue ON simulation (id) WHERE state = 'queued';
COMMENT ON TABLE simulation IS 'Simulations that were asked for over the API; the newest ones are kept.';
COMMENT ON COLUMN simulation.example IS 'Name of the shipped scenario; null: the caller sent one.';
COMMENT ON COLUMN simulation.document IS 'The scenario as it is run, defaults filled in.';
COMMENT ON COLUMN simulation.tries IS 'How often a runner began with it.';
COMMENT ON COLUMN simulation.lease_until IS
    'By the clock of the database; a running one whose lease is over has lost its runner.';
COMMENT ON COLUMN simulation.report_html IS 'Compressed by gzip.';
COMMENT ON COLUMN simulation.report_json IS 'Compressed by gzip; null where it was too long to be kept.';

-- The audit, the operator's policies and the versions of services are added to, never rewritten.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or deleted', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER event_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON event
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER policy_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON policy
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER service_version_append_only BEFORE UPDATE ON service_version
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- What a person changes wakes the loop at once; what nodes report does not.
CREATE FUNCTION wake_loop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('plimsoll_wake', TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER policy_wakes AFTER INSERT ON policy FOR EACH STATEMENT EXECUTE FUNCTION wake_loop();
CREATE TRIGGER approval_wakes AFTER UPDATE OF state ON plan
    FOR EACH ROW WHEN (NEW.state = 'approved') EXECUTE FUNCTION wake_loop();
CREATE TRIGGER task_wakes AFTER INSERT OR UPDATE OF generation, cancelled_at, deleted_at ON task
    FOR EACH STATEMENT EXECUTE FUNCTION wake_loop();

-- What a plan was made from: a change of any of it makes the plan too old to push. A node's cordon and cap do, what its
-- agent says does not.
CREATE FUNCTION bump_catalogue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cluster SET catalogue_revision = catalogue_revision + 1,
                       profile_revision = profile_revision + (TG_TABLE_NAME = 'profile')::int;
    PERFORM pg_notify('plimsoll_wake', TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER gpu_type_revises AFTER INSERT OR UPDATE OR DELETE ON gpu_type
    FOR EACH ROW EXECUTE FUNCTION bump_catalogue();
CREATE TRIGGER gpu_price_revises AFTER INSERT OR UPDATE OR DELETE ON gpu_price
    FOR EACH ROW EXECUTE FUNCTION bump_catalogue();
CREATE TRIGGER gpu_revises AFTER INSERT OR UPDATE OR DELETE ON gpu
    FOR EACH ROW EXECUTE FUNCTION bump_catalogue();
CREATE TRIGGER node_revises AFTER INSERT OR UPDATE OF cordoned, power_cap_w OR DELETE ON node
    FOR EACH ROW EXECUTE FUNCTION bump_catalogue();
CREATE TRIGGER profile_revises AFTER INSERT OR UPDATE OR DELETE ON profile
    FOR EACH ROW EXECUTE FUNCTION bump_catalogue();
CREATE TRIGGER service_revises AFTER INSERT OR UPDATE OR DELETE ON service
    FOR EACH ROW EXECUTE FUNCTION bump_catalogue();

-- A webhook is not told of its own trouble, or its failures would fill its queue. SKIP LOCKED: nobody who writes an
-- event waits for another who does, or fails for a webhook that is being deleted.
-- 10000 is app.db.webhooks.WAITING_LIMIT.
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
