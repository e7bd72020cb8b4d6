"""Operations on one stored job: read its row, change its state, record events. Also arrays and visibility."""
