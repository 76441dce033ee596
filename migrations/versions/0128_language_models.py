"""Services of language models, what their networks are made of, and what GPU types offer them."""

from alembic import op

revision = "0128"
down_revision = "0127"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Services of before are none of language models."""
    op.execute(_ADD)


def downgrade() -> None:
    """What was stated of language models is lost; their services become ones that nothing can serve."""
    op.execute(_DROP)


_ADD = """
ALTER TABLE service_version ADD llm jsonb CHECK (jsonb_typeof(llm) = 'object');
ALTER TABLE network ADD config jsonb CHECK (jsonb_typeof(config) = 'object');
ALTER TABLE gpu_type ADD llm jsonb CHECK (jsonb_typeof(llm) = 'object');
COMMENT ON COLUMN service_version.llm IS
    'Of a language model, whose slo_latency_ms is until the first token: what else is stated; null: it is none.';
COMMENT ON COLUMN network.config IS
    'Of a language model: the config.json beside its weights; null: as shipped, or it is none.';
COMMENT ON COLUMN gpu_type.llm IS
    'What its maker states that language models run by; null: as shipped for a type of that name.';
"""

_DROP = """
ALTER TABLE service_version DROP llm;
ALTER TABLE network DROP config;
ALTER TABLE gpu_type DROP llm;
"""
