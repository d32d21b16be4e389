"""Steps of recurrent layers: gated cells, GRU, LSTMN and neural Turing machines."""
