"""Simulations that people ask the API for: checked at once, run one at a time in a process of their own.

    examples   the shipped scenarios                    run      what that process does: the runs, the reports
    desk       what was asked for, checked and limited  runner   takes what waits, and watches over the process

The runs themselves are `app.simulate`, as the command line has them.
"""
