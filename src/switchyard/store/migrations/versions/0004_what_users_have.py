"""what users have: stored bytes by user, and indexes by which live jobs and arrays of a user are counted."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

UNENDED = "state IN ('PENDING', 'ASSIGNED', 'SUBMITTED', 'RUNNING')"
ARRAYS = "tasks_live IS NOT NULL AND ended_us IS NULL"

# What is there already counts, too: 1024 bytes a job, as policy/limits.py has it, its spec and its output. Output in a
# directory is not known here.
SUMS = """
    INSERT INTO usage (owner, bytes)
    SELECT owner, sum(size) FROM (
        SELECT jobs.owner AS owner, sum(1024 + length(specs.body)) AS size
            FROM jobs JOIN specs ON specs.hash = jobs.spec_hash GROUP BY jobs.owner
        UNION ALL
        SELECT jobs.owner AS owner, sum(length(output.data)) AS size
            FROM output JOIN jobs ON jobs.id = output.job_id GROUP BY jobs.owner
    ) AS parts GROUP BY owner
"""


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_usage")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        for name, where in (("ix_jobs_live", UNENDED), ("ix_jobs_arrays", ARRAYS)):
            batch_op.create_index(
                name, ["owner"], unique=False, sqlite_where=sa.text(where), postgresql_where=sa.text(where)
            )
    op.execute(SUMS)


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        for name in ("ix_jobs_arrays", "ix_jobs_live"):
            batch_op.drop_index(name)
    op.drop_table("usage")
