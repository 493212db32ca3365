"""The Streamlit entry with login: `app.py` behind `LoginMiddleware`."""

import os
from pathlib import Path

from starlette.middleware import Middleware
from streamlit.starlette import App

from kvtrail.dashboard.command import HEADER_VARIABLE, LOGIN_VARIABLE, PROXIES_VARIABLE
from kvtrail.dashboard.login import Login, LoginMiddleware

login = Login(
    Path(os.environ[LOGIN_VARIABLE]) if os.environ.get(LOGIN_VARIABLE) else None,
    os.environ.get(HEADER_VARIABLE, ""),
    os.environ.get(PROXIES_VARIABLE, "").split(),
)
app = App("app.py", middleware=[Middleware(LoginMiddleware, login=login)])
