"""Options of models and layers, as in a configuration file: their names, their values, and their checks."""
