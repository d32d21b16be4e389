"""CommandOption and option_parameters(), under the name of this package for tasks of users."""

from regard.training.command_options import CommandOption, option_parameters

__all__ = ["CommandOption", "option_parameters"]
