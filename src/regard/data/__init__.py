"""Data: text pairs read, checked, encoded and batched; a corpus that is built in; and public sets to fetch."""
