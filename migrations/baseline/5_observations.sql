-- What agents report: raw rows by day, sums by window of the control loop, totals by hour.
--
-- No foreign keys from here to the inventory: a reading stays when its node or service goes, and each key would cost a
-- lookup per row of the busiest tables. `agent_boot` admits known nodes only.

CREATE TABLE agent_boot (
    node resource_name NOT NULL REFERENCES node ON DELETE CASCADE,
    boot resource_name NOT NULL,
    last_sequence bigint NOT NULL DEFAULT 0 CHECK (last_sequence >= 0),
    first_seen_at timestamptz NOT NULL,
    PRIMARY KEY (node, boot)
) WITH (fillfactor = 70);
COMMENT ON TABLE agent_boot IS 'Starts of agents; it tells replayed observations from new ones.';

CREATE TABLE observation (
    node resource_name NOT NULL,
    boot resource_name NOT NULL,
    sequence bigint NOT NULL CHECK (sequence >= 1),
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    received_at timestamptz NOT NULL,
    PRIMARY KEY (node, boot, sequence, window_start)
) PARTITION BY RANGE (window_start);
CREATE INDEX observation_by_arrival ON observation USING brin (received_at);
COMMENT ON TABLE observation IS
    'One window of one node, exactly once; the readings of the window are in the *_observation tables.';

CREATE TABLE service_observation (
    node resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    service resource_name NOT NULL,
    arrivals bigint NOT NULL CHECK (arrivals >= 0),
    served bigint NOT NULL CHECK (served >= 0),
    in_slo bigint NOT NULL CHECK (in_slo >= 0),
    rejected bigint NOT NULL CHECK (rejected >= 0),
    queued bigint NOT NULL CHECK (queued >= 0)
) PARTITION BY RANGE (window_start);
CREATE INDEX service_observation_by_time ON service_observation USING brin (window_start);
COMMENT ON TABLE service_observation IS 'One service as one node''s router saw it over one window.';

CREATE TABLE gpu_observation (
    gpu resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    memory_used_mib amount NOT NULL,
    power_w amount NOT NULL,
    energy_j amount NOT NULL,
    clock_mhz amount NOT NULL,
    busy_percent amount CHECK (busy_percent <= 100),
    healthy boolean NOT NULL
) PARTITION BY RANGE (window_start);
-- One GPU's readings: its hour is read without everybody's.
CREATE INDEX gpu_observation_by_gpu ON gpu_observation (gpu, window_start);
CREATE INDEX gpu_observation_by_time ON gpu_observation USING brin (window_start);
COMMENT ON TABLE gpu_observation IS 'One GPU over one window.';
COMMENT ON COLUMN gpu_observation.busy_percent IS 'Null: where the driver does not say, as of MIG slices.';

CREATE TABLE replica_observation (
    gpu resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    replica resource_name NOT NULL,
    service resource_name NOT NULL,
    state text NOT NULL CHECK (state IN ('starting', 'ready', 'draining', 'failed')),
    sm_percent positive_amount NOT NULL CHECK (sm_percent <= 100),
    batch integer NOT NULL CHECK (batch >= 1),
    memory_mib amount NOT NULL,
    batches bigint NOT NULL CHECK (batches >= 0),
    requests bigint NOT NULL CHECK (requests >= 0),
    execution_ms amount NOT NULL
) PARTITION BY RANGE (window_start);
CREATE INDEX replica_observation_by_time ON replica_observation USING brin (window_start);
COMMENT ON TABLE replica_observation IS 'One replica over one window.';

CREATE TABLE use_observation (
    gpu resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    kind text NOT NULL CHECK (kind IN ('replica', 'task', 'others', 'idle')),
    name text NOT NULL,
    service text NOT NULL,
    memory_used_mib amount,
    sm_percent amount CHECK (sm_percent <= 100),
    energy_j amount NOT NULL,
    is_estimated boolean NOT NULL
) PARTITION BY RANGE (window_start);
CREATE INDEX use_observation_by_time ON use_observation USING brin (window_start);
COMMENT ON TABLE use_observation IS
    'What one replica or task, processes of others, or nobody used of a GPU over one window; where agents measure it.';

-- Sums.

CREATE TABLE service_window (
    service resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    arrivals bigint NOT NULL,
    served bigint NOT NULL,
    in_slo bigint NOT NULL,
    rejected bigint NOT NULL,
    latency_buckets bigint[] NOT NULL,
    PRIMARY KEY (service, window_start, window_s)
) WITH (fillfactor = 70);
CREATE INDEX service_window_by_time ON service_window (window_start);
COMMENT ON TABLE service_window IS
    'All nodes'' readings of a service, summed over the windows of the control loop; kept for hours only.';
COMMENT ON COLUMN service_window.latency_buckets IS
    'Count of each latency bucket, from bucket 0 up; missing ones at the end are 0.';

CREATE TABLE service_step (
    service resource_name NOT NULL,
    start timestamptz NOT NULL CHECK (start = date_bin('5 minutes', start, 'epoch')),
    first_start timestamptz NOT NULL,
    last_end timestamptz NOT NULL,
    served bigint NOT NULL,
    in_slo bigint NOT NULL,
    rejected bigint NOT NULL,
    PRIMARY KEY (service, start)
) WITH (fillfactor = 70);
CREATE INDEX service_step_by_time ON service_step (start);
COMMENT ON TABLE service_step IS
    'The rows of service_window that start within five minutes, summed as they come in; kept as long as those.';

CREATE TABLE service_hour (
    service resource_name NOT NULL,
    hour timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    arrivals bigint NOT NULL,
    served bigint NOT NULL,
    in_slo bigint NOT NULL,
    rejected bigint NOT NULL,
    PRIMARY KEY (service, hour)
) WITH (fillfactor = 70);
CREATE INDEX service_hour_by_hour ON service_hour (hour);
COMMENT ON TABLE service_hour IS 'All nodes'' readings of a service, summed per hour as they come in.';

CREATE TABLE gpu_hour (
    gpu resource_name NOT NULL,
    hour timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    observed_s amount NOT NULL,
    busy_s amount,
    energy_j amount NOT NULL,
    memory_mib_s amount NOT NULL,
    PRIMARY KEY (gpu, hour)
);
CREATE INDEX gpu_hour_by_hour ON gpu_hour (hour);
COMMENT ON TABLE gpu_hour IS
    'Roll-up of gpu_observation for hours that are over; a window counts in the hour in which it starts.';

CREATE TABLE use_hour (
    gpu resource_name NOT NULL,
    hour timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    kind text NOT NULL,
    name text NOT NULL,
    service text NOT NULL,
    observed_s amount NOT NULL,
    memory_mib_s amount NOT NULL,
    memory_known_s amount NOT NULL,
    sm_percent_s amount NOT NULL,
    sm_known_s amount NOT NULL,
    energy_j amount NOT NULL,
    estimated_j amount NOT NULL,
    PRIMARY KEY (gpu, hour, kind, name, service)
);
CREATE INDEX use_hour_by_hour ON use_hour (hour);
COMMENT ON TABLE use_hour IS 'Roll-up of use_observation, together with gpu_hour.';

CREATE TABLE roll_up (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    hours_until timestamptz NOT NULL DEFAULT '-infinity',
    received_until timestamptz NOT NULL DEFAULT '-infinity',
    rates_until timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO roll_up DEFAULT VALUES;
COMMENT ON TABLE roll_up IS
    'How far gpu_hour reaches: hours before hours_until, from observations received before received_until; '
    'service_rate: windows before rates_until.';

CREATE TABLE overuse (
    gpu resource_name NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    quantity text NOT NULL,
    service text NOT NULL,
    granted amount NOT NULL,
    used amount NOT NULL,
    is_estimated boolean NOT NULL,
    begun_at timestamptz NOT NULL,
    PRIMARY KEY (gpu, kind, name, quantity)
);
COMMENT ON TABLE overuse IS 'Replicas and tasks that use more than they were granted now; the audit has begin and end.';

CREATE TABLE pushed_window (
    service resource_name NOT NULL,
    source resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    received_at timestamptz NOT NULL,
    arrivals bigint NOT NULL CHECK (arrivals >= 0),
    served bigint NOT NULL CHECK (served >= 0),
    in_slo bigint NOT NULL CHECK (in_slo >= 0 AND in_slo <= served),
    rejected bigint NOT NULL CHECK (rejected >= 0),
    sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
    PRIMARY KEY (service, source, window_start)
);
CREATE INDEX pushed_window_by_time ON pushed_window (window_start);
COMMENT ON TABLE pushed_window IS
    'Counts that were pushed for a service, each window of a source once; the sums are elsewhere.';
COMMENT ON COLUMN pushed_window.source IS 'Who pushes: one name for each gateway or server that counts by itself.';
COMMENT ON COLUMN pushed_window.sha256 IS 'Of the whole body, so that a repetition is told from a contradiction.';

-- Functions: histograms, and the partitions of the tables of raw rows.

-- Element-wise sum of two histograms of any lengths.
CREATE FUNCTION add_counts(bigint[], bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(coalesce(a, 0) + coalesce(b, 0) ORDER BY position), '{}')
    FROM unnest($1, $2) WITH ORDINALITY AS pair (a, b, position)
$$;

-- Attaching asks for a weaker lock than CREATE TABLE ... PARTITION OF: writers and readers go on.
CREATE FUNCTION ensure_observation_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    parent text;
    part text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('plimsoll partitions'));
    FOREACH parent IN ARRAY ARRAY['observation', 'service_observation', 'gpu_observation', 'replica_observation',
                                  'use_observation']
    LOOP
        part := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
        IF to_regclass(part) IS NULL THEN
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part,
                           day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION drop_observation_days(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part record;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('plimsoll partitions'));
    FOR part IN
        SELECT child.oid::regclass AS name
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = ANY (ARRAY['observation', 'service_observation', 'gpu_observation',
                                     'replica_observation', 'use_observation']::regclass[])
          AND to_date(right(child.relname, 8), 'YYYYMMDD') < before
        ORDER BY child.relname
    LOOP
        EXECUTE format('DROP TABLE %s', part.name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
