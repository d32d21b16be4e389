"""Twins of recurrent models in training: all steps of a loop in one autograd function.

attentive_steps_cpu.py, attentive_steps_cuda.py   the decoder of Bahdanau et al. (2014)
gru_cpu.py, gru_cuda.py, recurrent.py             recurrent layers over padded sequences
lstmn.py                                          the layers of Cheng et al. (2016)
tape_steps.py, turing_machine.py                  the neural Turing machine of Graves et al. (2014)
"""
