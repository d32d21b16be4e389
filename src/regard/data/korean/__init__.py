"""The built-in Korean-English corpus: a small grammar of two languages that knows which word says which."""
