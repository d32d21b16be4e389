"""Steps of greedy and beam search on the device."""
