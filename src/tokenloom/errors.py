"""The one error that a user's mistake raises."""


class UserError(Exception):
    """Something the user gave cannot be used.

    The message is one line: what was given, what the limit is, which option or file changes it. The command
    line prints it and ends with `exit_code`; a server turns it into a 4xx answer. Of several processes, in all of which
    it is raised, one tells it; in the others `told` is true.
    """

    exit_code = 2
    told = False
