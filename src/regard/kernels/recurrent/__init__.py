"""Steps of recurrent layers: gated cells, the decoder of Bahdanau, LSTMN and neural Turing machines."""
