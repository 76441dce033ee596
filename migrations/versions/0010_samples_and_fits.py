"""Samples, fits and their health: what was measured, what was learned from it, and whether it still holds.

Expand only: old programs go on working beside it.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SAMPLES = """
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
COMMENT ON TABLE sample IS 'One measurement of a network on a GPU type: conditions, and what was measured there.';
COMMENT ON COLUMN sample.clock_mhz IS 'Null: the GPU type''s highest, or not known.';
COMMENT ON COLUMN sample.neighbours IS 'Other replicas on the GPU: [[network, batch, sm_percent], ...], sorted.';
COMMENT ON COLUMN sample.latency_ms IS 'Mean execution time of one whole batch.';
COMMENT ON COLUMN sample.source IS 'Who measured it; `served` = the agents'' own readings, thinned.';
"""

FITS = """
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
"""

HEALTH = """
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

ALTER TABLE cluster ADD COLUMN fit_revision bigint NOT NULL DEFAULT 1;
COMMENT ON COLUMN cluster.fit_revision IS 'Grows whenever some fit_health.planned changes.';

ALTER TABLE profile_point ADD COLUMN latency_sigma amount;
COMMENT ON COLUMN profile_point.latency_sigma IS
    'Standard deviation of ln(true / stated time); null: by the profile''s provenance.';

-- The shipped rows lean to the slow side already; see app/catalogue/install.py.
UPDATE profile_point o SET latency_sigma = 0
FROM profile p WHERE p.id = o.profile_id AND p.source LIKE 'shipped catalogue%';

ALTER TABLE policy ADD COLUMN fit_quantile percentile NOT NULL DEFAULT 0.9,
                   ADD COLUMN learning boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN policy.fit_quantile IS 'Execution times are planned at this quantile of what they may be.';
COMMENT ON COLUMN policy.learning IS 'Whether served latencies correct the operating points that are planned with.';
"""

VIEWS = """
CREATE VIEW report.fit_quality AS
SELECT coalesce(network, '(all)') AS network, gpu_type, quantity, technique, version,
       100 * training_error AS training_error_percent,
       100 * cross_validated_error AS cross_validated_error_percent,
       100 * cross_validated_error_p90 AS cross_validated_error_percent_p90,
       sample_count AS samples, source, created_at
FROM fit WHERE is_current;

CREATE VIEW report.fit_health AS
SELECT h.network, h.gpu_type, p.version AS profile_version, p.provenance,
       100 * (exp((now #>> '{mean,0}')::double precision) - 1) AS correction_percent,
       100 * sqrt(greatest((now #>> '{covariance,0,0}')::double precision, 0)) AS uncertainty_percent,
       100 * (now ->> 'error')::double precision AS error_percent,
       100 * (now ->> 'band')::double precision AS band_percent,
       now ->> 'alarm_since_s' IS NOT NULL AS is_alarmed,
       to_timestamp((now ->> 'alarm_since_s')::double precision) AS alarm_since,
       (now ->> 'readings')::bigint AS readings,
       to_timestamp((now ->> 'seen_until_s')::double precision) AS seen_until
FROM fit_health h JOIN profile p ON p.id = h.profile_id AND p.is_current;
"""

VIEW_COMMENTS = {
    "fit_quality": "The fits in force: which technique was chosen for each network and GPU type, and how wrong it is.",
    "fit_health": "How the operating points in force hold against what is served now.",
}

COLUMN_COMMENTS = {
    ("fit_quality", "network"): "Network; `(all)` for what is fitted over all networks of a GPU type.",
    ("fit_quality", "quantity"): "latency_ms, interference, stranger_interference, power_w or memory_mib.",
    ("fit_quality", "technique"): "The technique with the least cross-validated error.",
    ("fit_quality", "version"): "Grows with every fit of the same quantity.",
    ("fit_quality", "training_error_percent"): "Mean error on the samples that it was fitted to.",
    ("fit_quality", "cross_validated_error_percent"): "Mean error on samples held out in turn; null: too few.",
    ("fit_quality", "cross_validated_error_percent_p90"): "90th percentile of that error.",
    ("fit_quality", "samples"): "Samples that it was fitted to.",
    ("fit_quality", "source"): "Where they came from, or who asked for the fit.",
    ("fit_quality", "created_at"): "When it was fitted.",
    ("fit_health", "network"): "Network.",
    ("fit_health", "profile_version"): "Version of the operating points that are in force.",
    ("fit_health", "provenance"): "measured, scaled or estimated.",
    ("fit_health", "correction_percent"): "By how much all stated times are too short; negative: too long.",
    ("fit_health", "uncertainty_percent"): "Standard deviation of that correction.",
    ("fit_health", "error_percent"): "Mean error of the corrected times over the last few periods.",
    ("fit_health", "band_percent"): "Errors above it, three periods in a row, raise the alarm.",
    ("fit_health", "is_alarmed"): "Whether the drift alarm stands; planning keeps more room then.",
    ("fit_health", "alarm_since"): "Since when; null: it does not stand.",
    ("fit_health", "readings"): "Readings of replicas that it was learned from.",
    ("fit_health", "seen_until"): "End of the last period that had readings.",
}
GPU_TYPE_COMMENT = "GPU type."


def upgrade() -> None:
    """Make the tables and the views, and say what each column of a view means."""
    for part in (SAMPLES, FITS, HEALTH, VIEWS):
        op.execute(part)
    for view, comment in VIEW_COMMENTS.items():
        op.execute(f"COMMENT ON VIEW report.{view} IS '{comment}'")
        op.execute(f"COMMENT ON COLUMN report.{view}.gpu_type IS '{GPU_TYPE_COMMENT}'")
    for (view, column), comment in COLUMN_COMMENTS.items():
        op.execute(f"COMMENT ON COLUMN report.{view}.{column} IS '{comment}'")


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP VIEW report.fit_health, report.fit_quality")
    op.execute("ALTER TABLE policy DROP COLUMN fit_quantile, DROP COLUMN learning")
    op.execute("ALTER TABLE profile_point DROP COLUMN latency_sigma")
    op.execute("ALTER TABLE cluster DROP COLUMN fit_revision")
    op.execute("DROP TABLE fit_health, fit, sample")
