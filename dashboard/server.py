"""What Streamlit runs: `app.py`, behind the login where there is one."""

import os
from pathlib import Path

from starlette.middleware import Middleware
from streamlit.starlette import App

from kvtrail.dashboard.command import LOGIN_VARIABLE
from kvtrail.dashboard.index_page import IndexPage
from kvtrail.dashboard.login import Login, LoginMiddleware

middleware = [Middleware(IndexPage)]
if token_file := os.environ.get(LOGIN_VARIABLE):
    middleware.insert(0, Middleware(LoginMiddleware, login=Login(Path(token_file))))
app = App("app.py", middleware=middleware)
