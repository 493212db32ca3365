"""What Streamlit runs: `app.py`, behind the login where there is one."""

import os
from pathlib import Path

from starlette.middleware import Middleware
from streamlit.starlette import App

from kvtrail.dashboard.command import HEADER_VARIABLE, LOGIN_VARIABLE, PROXIES_VARIABLE
from kvtrail.dashboard.index_page import IndexPage
from kvtrail.dashboard.login import Login, LoginMiddleware

token_file, header = os.environ.get(LOGIN_VARIABLE), os.environ.get(HEADER_VARIABLE, "")
middleware = [Middleware(IndexPage)]
if token_file or header:
    login = Login(Path(token_file) if token_file else None, header, os.environ.get(PROXIES_VARIABLE, "").split())
    middleware.insert(0, Middleware(LoginMiddleware, login=login))
app = App("app.py", middleware=middleware)
