-- What is predicted: samples and the fits of them, whether those still hold, arrival rates and how they are forecast.

CREATE TABLE sample (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    network resource_name NOT NULL REFERENCES network ON DELETE CASCADE,
    gpu_type resource_name NOT NULL REFERENCES gpu_type ON DELETE CASCADE,
    batch positive_amount NOT NULL CHECK (batch >= 1),
    sm_percent positive_amount NOT NULL CHECK (sm_percent <= 100),
    clock_mhz positive_amount,
    time_quota_percent positive_amount NOT NULL DEFAULT 100 CHECK (time_quota_percent <= 100),
    power_limit_w positive_amount,
    neighbours jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(neighbours) = 'array'),
    latency_ms positive_amount NOT NULL,
    power_w positive_amount,
    memory_mib positive_amount,
    l2_util_percent amount CHECK (l2_util_percent <= 100),
    source text NOT NULL DEFAULT '',
    measured_at timestamptz,
    received_at timestamptz NOT NULL,
    -- Sending a sample again changes nothing.
    CONSTRAINT sample_once UNIQUE NULLS NOT DISTINCT (network, gpu_type, batch, sm_percent, clock_mhz,
        time_quota_percent, power_limit_w, neighbours, latency_ms, power_w, memory_mib, l2_util_percent, source,
        measured_at)
);
CREATE INDEX sample_by_age ON sample (gpu_type, received_at DESC);
-- What the leader asks every minute. Served samples may be a thousand times as many as those that people sent: the
-- search for new ones passes them over.
CREATE INDEX sample_sent ON sample (network, gpu_type, received_at DESC) WHERE source <> 'served';
CREATE INDEX sample_served ON sample (network, gpu_type, received_at DESC) WHERE source = 'served';
COMMENT ON TABLE sample IS 'One measurement of a network on a GPU type: conditions, and what was measured there.';
COMMENT ON COLUMN sample.clock_mhz IS 'Null: the GPU type''s highest, or not known.';
COMMENT ON COLUMN sample.neighbours IS 'Other replicas on the GPU: [[network, batch, sm_percent], ...], sorted.';
COMMENT ON COLUMN sample.latency_ms IS 'Mean execution time of one whole batch.';
COMMENT ON COLUMN sample.source IS 'Who measured it; `served` = the agents'' own readings, thinned.';

CREATE TABLE fit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    network resource_name REFERENCES network ON DELETE CASCADE,
    gpu_type resource_name NOT NULL REFERENCES gpu_type ON DELETE CASCADE,
    quantity text NOT NULL CHECK (quantity IN ('latency_ms', 'interference', 'stranger_interference', 'power_w',
                                                'memory_mib')),
    version integer NOT NULL CHECK (version >= 1),
    is_current boolean NOT NULL DEFAULT true,
    technique text NOT NULL,
    document jsonb NOT NULL CHECK (jsonb_typeof(document) = 'object'),
    training_error amount NOT NULL,
    cross_validated_error amount,
    cross_validated_error_p90 amount,
    sample_count integer NOT NULL CHECK (sample_count >= 1),
    source text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    UNIQUE NULLS NOT DISTINCT (network, gpu_type, quantity, version)
);
CREATE UNIQUE INDEX fit_current ON fit (network, gpu_type, quantity) NULLS NOT DISTINCT WHERE is_current;
COMMENT ON TABLE fit IS 'What one technique learned from samples: coefficients as data, with quality and origin.';
COMMENT ON COLUMN fit.network IS 'Null: the fit is about all networks on the GPU type (interference).';
COMMENT ON COLUMN fit.cross_validated_error IS
    'Mean |predicted - measured| / measured over samples held out in turn; null: too few to hold any out.';

CREATE TABLE fit_health (
    network resource_name NOT NULL,
    gpu_type resource_name NOT NULL,
    profile_id bigint NOT NULL REFERENCES profile ON DELETE CASCADE,
    now jsonb NOT NULL CHECK (jsonb_typeof(now) = 'object'),
    planned jsonb NOT NULL CHECK (jsonb_typeof(planned) = 'object'),
    planned_at timestamptz NOT NULL,
    PRIMARY KEY (network, gpu_type)
) WITH (fillfactor = 70);
CREATE INDEX fit_health_by_profile ON fit_health (profile_id);
COMMENT ON TABLE fit_health IS
    'How well the operating points of a network on a GPU type hold against what is served.';
COMMENT ON COLUMN fit_health.profile_id IS 'The version it speaks of; it says nothing of any other.';
COMMENT ON COLUMN fit_health.now IS 'State of the filter after the last period that had readings.';
COMMENT ON COLUMN fit_health.planned IS
    'The state that planning reckons with: taken over when it differs enough, so that plans do not follow noise.';

-- No foreign keys to the services: a rate stays when its service goes, as other readings do.
CREATE TABLE service_rate (
    service resource_name NOT NULL,
    start timestamptz NOT NULL CHECK (extract(epoch FROM start)::bigint % 300 = 0),
    heard_s positive_amount NOT NULL CHECK (heard_s <= 300),
    arrivals amount NOT NULL,
    PRIMARY KEY (service, start)
);
CREATE INDEX service_rate_by_start ON service_rate USING brin (start);
COMMENT ON TABLE service_rate IS
    'Requests of a service in five minutes: summed from service_window, or from a trace; kept for weeks, for seasons.';
COMMENT ON COLUMN service_rate.heard_s IS
    'Seconds of the five minutes that somebody reported of; no row: nothing was heard, which is not a rate of 0.';

CREATE TABLE forecast_choice (
    service resource_name PRIMARY KEY,
    technique text NOT NULL,
    seasons jsonb NOT NULL,
    margin positive_amount NOT NULL CHECK (margin >= 1),
    scores jsonb NOT NULL,
    at timestamptz NOT NULL,
    reserve_rps amount NOT NULL DEFAULT 0
);
CREATE INDEX forecast_choice_by_time ON forecast_choice (at);
COMMENT ON TABLE forecast_choice IS 'The technique that forecasts each service, and how each did in back-tests.';
COMMENT ON COLUMN forecast_choice.seasons IS 'What the technique needs to know of the time of day; [] for most.';
COMMENT ON COLUMN forecast_choice.margin IS 'Factor on the spread of the forecast, so that quantiles are kept.';
COMMENT ON COLUMN forecast_choice.at IS 'Windows before this moment were judged.';
COMMENT ON COLUMN forecast_choice.reserve_rps IS
    'Arrival rate that plans carry at least, for bursts that no forecast follows in time.';
