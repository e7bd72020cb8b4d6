"""The tables of quotes: open questions, answers, jobs that wait for quotes, and quotes that were used."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Table, Text, text

from switchyard.store.engine.metadata import metadata

# Shared with the queries: SQLite uses a partial index only if the query has the same text.
QUOTE_USE_OPEN = "is_open"
QUOTE_USE_MEASURED = "error_us IS NOT NULL"

# A shape is the hash of the spec in question, which is in `specs`.
quote_asks = Table(
    "quote_asks",
    metadata,
    Column("shape", Text, primary_key=True),
    Column("cluster_id", Text, primary_key=True),
    Column("asked_us", BigInteger, nullable=False),
    Column("deadline_us", BigInteger, nullable=False),  # a later answer is stored, but too late for the job that asked
    Column("refused", Text, nullable=False),  # the agents that said no, while another agent may say yes
    Column("owner", Text, nullable=True),  # id of the user who asked first
)
Index("ix_quote_asks_cluster", quote_asks.c.cluster_id, quote_asks.c.asked_us)

quotes = Table(
    "quotes",
    metadata,
    Column("shape", Text, primary_key=True),
    Column("cluster_id", Text, primary_key=True),
    Column("said", Text, nullable=False),  # yes · no · none: an answer that could not be used
    Column("reason", Text, nullable=False),
    Column("eta_us", BigInteger, nullable=True),
    Column("cost", Float, nullable=True),
    Column("confidence", Float, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("until_us", BigInteger, nullable=False),
    Column("took_us", BigInteger, nullable=False),  # from the question to the answer
)
Index("ix_quotes_until", quotes.c.until_us)

# A job that waits for quotes is due when the last answer comes, at the latest at the deadline.
quote_waits = Table(
    "quote_waits",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("shape", Text, nullable=False),
    Column("asked", Text, nullable=False),  # the ids of the clusters that were asked
    Column("asked_us", BigInteger, nullable=False),
    Column("deadline_us", BigInteger, nullable=False),
    Column("due_us", BigInteger, nullable=False),
)
Index("ix_quote_waits_due", quote_waits.c.due_us)
Index("ix_quote_waits_shape", quote_waits.c.shape)

# The quotes by which a job's cluster was chosen; and, once the job has started, the error of the chosen quote.
quote_uses = Table(
    "quote_uses",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("cluster_id", Text, nullable=True),
    Column("body", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("expected_us", BigInteger, nullable=True),  # when the job should begin
    Column("error_us", BigInteger, nullable=True),  # how much later it started; NULL: not known
    Column("is_open", Boolean, nullable=False),
)
Index(
    "ix_quote_uses_open", quote_uses.c.job_id, sqlite_where=text(QUOTE_USE_OPEN), postgresql_where=text(QUOTE_USE_OPEN)
)
Index(
    "ix_quote_uses_measured",
    quote_uses.c.cluster_id,
    quote_uses.c.at_us.desc(),
    sqlite_where=text(QUOTE_USE_MEASURED),
    postgresql_where=text(QUOTE_USE_MEASURED),
)
