"""What is asked: questions, tasks, and the official OLMES suites."""

from olmes_monitor.suite.own import file_rows, hub_rows, task_from_rows
from olmes_monitor.suite.question import FORMULATIONS, LABELS, Formulation, Question, Request
from olmes_monitor.suite.suites import Suite, load_suite
from olmes_monitor.suite.task import Task
from olmes_monitor.suite.templates import Template

__all__ = [
    "FORMULATIONS",
    "LABELS",
    "Formulation",
    "Question",
    "Request",
    "Suite",
    "Task",
    "Template",
    "file_rows",
    "hub_rows",
    "load_suite",
    "task_from_rows",
]
